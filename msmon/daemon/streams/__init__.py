"""The streams of sessions, from the messages of agents to the deliveries for the outputs.

Each message has a number. It is taken once, handed to the outputs, and acknowledged when they hold
it. What is refused, can't be read or gets lost on the way is counted here.
"""
