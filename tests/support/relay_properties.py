"""What holds for a relay in any weather: each property plays one random request and raises if a rule is broken."""

from collections.abc import Callable
from random import Random
from types import ModuleType

from pdd.core.request import HandoffMode, Role, Route
from tests.support.relay_referee import demand
from tests.support.relay_world import Weather, World, random_world

Property = Callable[[ModuleType, Random], None]


def completes(m: ModuleType, world: World) -> None:
    world.run()
    refused = world.prefills and not world.emitted
    demand(refused or isinstance(world.outcome, m.Finish), "the answer completes")


def in_fair_weather_every_answer_is_complete_and_exact(m, random):
    completes(m, random_world(m, random, Weather()))


def a_pinned_direct_request_never_relays(m, random):
    world = random_world(m, random, Weather(hostile=0.2), may_reroute=False)
    world.route = Route.DIRECT
    completes(m, world)
    demand(not any(e.role is Role.RELAY_DECODE for e in world.engines.values()), "no relay decode")


def p_md_may_turn_into_a_relay_while_it_waits(m, random):
    world = random_world(m, random, Weather(hostile=0.6), may_reroute=True, max_tokens=5, stop_token_ids=frozenset())
    world.route = Route.DIRECT
    completes(m, world)


def a_relay_hands_over_in_every_mode(m, random):
    world = random_world(m, random, Weather(), max_tokens=40, may_reroute=False, stop_token_ids=frozenset())
    world.route, world.handoff = Route.RELAY, random.choice(list(HandoffMode))
    completes(m, world)
    roles = {e.role for e in world.engines.values() if not e.is_extend}
    demand(bool(roles & {Role.RELAY_DECODE, Role.MAIN_DECODE}), "somebody decodes")


def catching_up_survives_losses(m, random):
    plan = {"max_tokens": 60, "may_reroute": False, "stop_token_ids": frozenset()}
    plan |= {"relay_floor": 0, "relay_cap": random.choice([None, 8, 20])}
    world = random_world(m, random, Weather(faults=5, hostile=0.3), max_prefill_attempts=9, **plan)
    world.route, world.handoff = Route.RELAY, HandoffMode.CATCH_UP
    completes(m, world)


def losses_are_survived(m, random):
    completes(m, random_world(m, random, Weather(faults=6), max_prefill_attempts=9))


def prefill_is_retried_within_its_bound(m, random):
    random_world(m, random, Weather(faults=3), max_tokens=2, max_prefill_attempts=random.choice([1, 2])).run()


def a_prefill_that_is_held_and_resumed_loses_nothing(m, random):
    completes(m, random_world(m, random, Weather(holding=0.4)))


def one_that_is_held_survives_losses_and_hostility(m, random):
    weather = Weather(holding=0.3, faults=3, hostile=0.3, leaving=0.02)
    random_world(m, random, weather, max_prefill_attempts=random.choice([1, 9])).run()


def hostile_events_change_nothing(m, random):
    completes(m, random_world(m, random, Weather(hostile=0.5)))


def hostile_events_and_losses_together(m, random):
    random_world(m, random, Weather(faults=6, hostile=0.4)).run()


def a_client_may_leave_and_an_answer_may_be_complete_at_any_moment(m, random):
    random_world(m, random, Weather(faults=3, hostile=0.2, leaving=0.06, completing=0.06)).run()


def any_one_role_that_stays_up_completes_the_answer(m, random):
    down = frozenset(Role) - {random.choice(list(Role))}
    completes(m, random_world(m, random, Weather(down=down, hostile=0.1)))


def any_two_roles_that_stay_up_complete_the_answer(m, random):
    down = frozenset({random.choice(list(Role))})
    completes(m, random_world(m, random, Weather(down=down, faults=3), max_prefill_attempts=9))


def everybody_away_for_a_while_and_back_completes_the_answer(m, random):
    rounds = random.choice([1, 2, 5])
    weather = Weather(blackout=random.randint(1, rounds), hostile=0.4)
    completes(m, random_world(m, random, weather, max_recovery_rounds=rounds))


def everybody_away_for_good_fails_after_exactly_the_bound(m, random):
    bounds = {"max_recovery_rounds": random.choice([0, 1, 3]), "max_decode_attempts": random.choice([2, 4, 5, 64])}
    random_world(m, random, Weather(down=frozenset(Role), hostile=0.4), **bounds).run()


def a_recovery_that_waits_is_left_alone(m, random):
    plan = {"max_tokens": 5, "stop_token_ids": frozenset(), "may_reroute": True, "relay_floor": 0}
    random_world(m, random, Weather(down=frozenset(Role), hostile=0.8), max_recovery_rounds=3, **plan).run()


def losses_within_tight_bounds_fail_only_at_the_bound(m, random):
    bounds = {"max_recovery_rounds": random.choice([0, 1]), "max_decode_attempts": random.choice([1, 3])}
    random_world(m, random, Weather(faults=9), **bounds).run()


PROPERTIES: tuple[Property, ...] = (
    in_fair_weather_every_answer_is_complete_and_exact,
    losses_are_survived,
    catching_up_survives_losses,
    hostile_events_and_losses_together,
    a_client_may_leave_and_an_answer_may_be_complete_at_any_moment,
    a_pinned_direct_request_never_relays,
    p_md_may_turn_into_a_relay_while_it_waits,
    a_relay_hands_over_in_every_mode,
    prefill_is_retried_within_its_bound,
    a_prefill_that_is_held_and_resumed_loses_nothing,
    one_that_is_held_survives_losses_and_hostility,
    hostile_events_change_nothing,
    any_one_role_that_stays_up_completes_the_answer,
    any_two_roles_that_stay_up_complete_the_answer,
    everybody_away_for_a_while_and_back_completes_the_answer,
    everybody_away_for_good_fails_after_exactly_the_bound,
    a_recovery_that_waits_is_left_alone,
    losses_within_tight_bounds_fail_only_at_the_bound,
)
