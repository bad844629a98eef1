"""A study of serving: prefill next to decode under a limit on the time between tokens, by contenders in one loop.

The contenders decide (contenders, policy), the loop asks them (loop), and a card runs what they decided (card).
README.md has the question and the answer.
"""
