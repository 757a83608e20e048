"""Mutation testing: small faults are put into the code one at a time, and the tests have to notice.

- `config.toml`: which files (in rooms), which tests, the sample's size and seed, what is left out and why
- `operators`: how a fault is made; mutmut's operators that a type checker doesn't refuse, and two more
- `mutants`: all mutants of a file, and a sample that a later commit can draw again
- `covering`: which tests execute a line, and how long they take (a pytest plugin, and what it writes)
- `server`: a pytest plugin that collects once and forks per mutant
- `run`: the command (`make mutation`); private copies of the tree, results that can be resumed, the report
"""
