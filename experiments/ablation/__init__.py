"""The paper's MNIST section: its studies, and those that question it.

`python -m experiments ablation --help` runs them, `python -m experiments report` makes the page.
"""
