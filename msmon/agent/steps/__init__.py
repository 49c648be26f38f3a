"""Where training steps are counted.

``counter`` counts. The other modules hook into frameworks and call it: an optimizer of PyTorch,
vLLM's worker, MindSpore's callback.
"""
