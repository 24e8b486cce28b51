"""The source code at a location: texts of calls, conditions around them, and names that they use."""
