# the thread's own function enters autocast

import threading

model = torch.nn.Linear(8, 2)


def predict(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs.append(model(x))


with torch.autocast("cuda", dtype=torch.bfloat16):
    worker = threading.Thread(target=predict, args=(inputs,))
    worker.start()
    worker.join()
