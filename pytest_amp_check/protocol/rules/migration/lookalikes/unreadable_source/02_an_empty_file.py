# an empty file


