"""Hostile bytes at every reader: coverage-guided fuzzing, and what it found so far as a fast test.

``target``          what a target is, and the small parts that targets share
``targets_*``       the targets: plain functions from bytes to nothing, which raise when something is wrong
``targets``         the list of them
``child``           one target under atheris (libFuzzer) in a process of its own
``run``             the runner: ``python tests/fuzz/run.py --help``
``corpus/T/``       inputs that between them reach every branch of target T that fuzzing reached, minimised
``crashers/T/``     inputs that once found a defect, named by what it was

``test_fuzz_corpus.py`` feeds seeds, corpus and crashers to the targets in ``make test``; it needs no atheris.
"""
