import hashlib

from hypothesis import given
from hypothesis import strategies as st

from pdd.core.blocks import BlockHash
from pdd.engine.embedded.block_pool import BlockPool


def named(number: int) -> BlockHash:
    return BlockHash(hashlib.sha256(str(number).encode()).digest())


def test_too_many_blocks_are_refused_and_nothing_changes():
    pool = BlockPool(4)
    pool.allocate(2)
    assert pool.allocate(3) is None
    assert pool.stats().num_free == 2


def test_a_published_block_is_found_again_after_its_holder_has_gone():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    for index, block in enumerate(blocks):
        pool.publish(block, named(index))
    pool.release(blocks)
    assert pool.stats().num_cached == 2
    assert pool.lookup([named(0), named(1), named(2)]) == blocks


def test_only_the_prefix_that_is_here_counts():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.publish(blocks[1], named(1))
    assert pool.lookup([named(0), named(1)]) == ()


def test_a_shared_block_stays_until_its_last_holder_has_gone():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.publish(blocks[0], named(0))
    pool.hold(blocks)
    pool.release(blocks)
    assert pool.allocate(2) is None
    pool.release(blocks)
    assert pool.allocate(2) is not None
    assert pool.lookup([named(0)]) == ()


def test_the_least_recently_used_goes_first_and_of_one_sequence_its_end():
    pool = BlockPool(4)
    old = pool.allocate(2)
    new = pool.allocate(2)
    for index, block in enumerate((*old, *new)):
        pool.publish(block, named(index))
    pool.release(old)
    pool.release(new)
    pool.hold(pool.lookup([named(0)]))
    pool.release(old[:1])  # used again, so now the youngest
    pool.allocate(2)
    assert pool.lookup([named(1)]) == ()
    assert pool.lookup([named(3)]) == ()
    assert pool.lookup([named(0)]) == old[:1]
    assert pool.lookup([named(2)]) == new[:1]


def test_a_second_block_of_the_same_name_stays_nameless():
    pool = BlockPool(2)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.publish(first[0], named(0))
    pool.publish(second[0], named(0))
    pool.release(second)
    assert pool.lookup([named(0)]) == first
    assert pool.stats().num_free == 1


@given(st.data())
def test_the_books_balance_whatever_happens(data):
    pool = BlockPool(12)
    held: list[list[int]] = []
    for _ in range(40):
        action = data.draw(st.sampled_from(["allocate", "release", "publish", "reuse"]))
        if action == "allocate":
            available = pool.num_available
            count = data.draw(st.integers(0, 6))
            blocks = pool.allocate(count)
            assert (blocks is None) == (count > available)
            if blocks:
                assert len(set(blocks)) == count
                assert not any(block in table for table in held for block in blocks)
                held.append(list(blocks))
        elif action == "release" and held:
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        elif action == "publish" and held:
            pool.publish(
                data.draw(st.sampled_from([b for table in held for b in table])), named(data.draw(st.integers(0, 5)))
            )
        elif action == "reuse":
            found = pool.lookup([named(data.draw(st.integers(0, 5)))])
            pool.hold(found)
            if found:
                held.append(list(found))
        stats = pool.stats()
        assert stats.num_held == len({block for table in held for block in table})
        assert stats.num_free + stats.num_held + stats.num_cached == pool.num_blocks
