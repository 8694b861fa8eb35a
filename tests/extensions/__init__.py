"""The tests of the extensions, a folder for each."""
