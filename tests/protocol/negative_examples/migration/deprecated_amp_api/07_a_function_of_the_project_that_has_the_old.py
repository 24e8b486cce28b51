# a function of the project that has the old name

from project.precision import autocast

with autocast(enabled=True):
    output = model(inputs)
