"""One operator at a time, and its cases."""
