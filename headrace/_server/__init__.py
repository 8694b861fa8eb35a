"""The servers' packages under private names, in a process that runs a user's code.

Start with launch.py; imports.py has the rules. In a wheel the packages are in this folder. It may
import what `config` may.
"""
