"""Rollouts: groups of episodes, played, scored and handed to training as a stream.

:mod:`~corerl.rollout.stream` admits groups and hands out those of a step; :mod:`~corerl.rollout.player` plays a group;
:mod:`~corerl.rollout.recorder` makes a row of an agent's requests; :mod:`~corerl.rollout.engines` are the rollout
workers, each a :mod:`~corerl.rollout.worker`.
"""
