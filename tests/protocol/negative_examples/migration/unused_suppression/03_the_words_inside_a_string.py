# the words inside a string

print("write # amp: ignore[AMP201] at the end of the line")
