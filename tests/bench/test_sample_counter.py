"""``SampleCounter``: each sample that a worker makes counts once."""

from torch.utils.data import DataLoader

from fastload.bench.subjects.sample_counter import SampleCounter


def test_samples_of_all_workers_are_counted():
    counter = SampleCounter(workers=2)
    loader = DataLoader(counter.of(range(20)), batch_size=4, num_workers=2)
    assert counter.total() == 0
    assert [batch.tolist() for batch in loader] == [list(range(start, start + 4)) for start in range(0, 20, 4)]
    assert counter.total() == 20


def test_samples_count_before_their_batch_is_asked_for():
    counter = SampleCounter(workers=1)
    batches = iter(DataLoader(counter.of(range(20)), batch_size=4, num_workers=1))
    next(batches)
    while counter.total() < 3 * 4:  # the worker goes on for its queue's two batches
        pass
    del batches
    assert counter.total() == 3 * 4
