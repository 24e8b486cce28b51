# the thread loads data

import threading


def fill(batches, queue):
    for batch in batches:
        queue.append(batch)


with torch.autocast("cuda", dtype=torch.bfloat16):
    loading = threading.Thread(target=fill, args=(loader, []))
    loading.start()
    output = model(inputs)
    loading.join()
