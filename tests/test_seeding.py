from corerl.seeding import Seeds, derived_seed


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


def test_a_derived_seed_depends_on_the_seed_and_on_each_part_and_its_end():
    parts = [(), (b"",), (b"ab",), (b"a", b"b"), (b"", b"ab"), (b"ba",)]
    drawn = [derived_seed(seed, *part) for seed in (0, 1, 2**63 - 1, -1) for part in parts]
    assert len(set(drawn)) == len(drawn) and all(0 <= seed < 2**63 for seed in drawn)
    assert drawn == [derived_seed(seed, *part) for seed in (0, 1, 2**63 - 1, -1) for part in parts]
