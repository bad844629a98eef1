"""The cases of gpu_suite.py: a module for each subject, whose functions enter themselves into the list of cases."""
