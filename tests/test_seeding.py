from corerl.seeding import Seeds


def test_seeds_depend_on_run_step_and_use_alone():
    assert Seeds(1).training_requests(3, 5) == Seeds(1).training_requests(3, 5)
    drawn = [
        *Seeds(1).training_requests(3, 5),
        *Seeds(1).training_requests(4, 5),
        *Seeds(2).training_requests(3, 5),
        *Seeds(1).validation_requests(5),
    ]
    assert len(set(drawn)) == 20
    assert all(0 <= seed < 2**63 for seed in drawn)
