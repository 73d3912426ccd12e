"""The event loop of generation."""

import gc

import pytest

from corerl.rollout.event_loop import FULL_COLLECTIONS, EventLoop


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("before", [(700, 10, 10), (500, 5, 1000), (0, 10, 10)])
def test_collections_of_all_objects_are_rarer_until_it_is_closed(background, before):
    found = gc.get_threshold()
    try:
        gc.set_threshold(*before)
        loop = EventLoop(background=background)
        assert gc.get_threshold() == (*before[:2], max(before[2], FULL_COLLECTIONS))
        loop.close()
        loop.close()
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*found)
