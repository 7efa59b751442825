"""What the buffers of the JPEG engines grow for, which can be told without engines."""

import numpy as np

from fastload.decode.nvjpeg import _larger_files

AREAS = np.array([500 * 375] * 14 + [640 * 480, 6000 * 4000])


def test_each_place_is_given_a_large_image_but_not_one_of_the_few_that_are_huge():
    largest, _ = _larger_files(AREAS)
    assert set(AREAS[largest]) == {640 * 480}


def test_each_place_is_given_a_file_from_further_up_where_the_longer_ones_are():
    _, longer = _larger_files(AREAS)
    assert longer.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]


def test_a_single_file_is_all_there_is():
    assert [places.tolist() for places in _larger_files(np.array([100]))] == [[0], [0]]
