"""Hand-made mutants of the modelled engines' batch: each puts steps together that ``policy.batching`` would plan
differently.
"""

from __future__ import annotations

from tests.support.mutants import UnitMutant

_KILLER = "sim.test_engine_batch:test_steps_put_together_are_the_scheduler_s_single_steps"

MUTANTS: tuple[UnitMutant, ...] = tuple(
    UnitMutant(guard, "sim.engine_batch", old, new, killer=_KILLER)
    for guard, old, new in (
        (
            "who comes or leaves takes effect at the next boundary",
            "elif self._flight.num_steps > 1 and now < self._flight.ends:",
            "elif False:",
        ),
        (
            "a boundary that is now is the next one",
            "self._duration(flight, middle) >= now",
            "self._duration(flight, middle) > now",
        ),
        (
            "whoever comes, leaves or is loaded changes the plan",
            "        self._plan_holds = False\n        if self._flight is None:\n",
            "        if self._flight is None:\n",
        ),
        (
            "whoever has ended changes the plan",
            "        self._scheduler.remove(job)\n        self._plan_holds = False\n",
            "        self._scheduler.remove(job)\n",
        ),
        ("a prefill changes with each step", "self._plan_holds = not plan.prefills", "self._plan_holds = True"),
        (
            "the next in line asks again after each span",
            "may_admit = self._scheduler.num_waiting > 0 and not self._scheduler.is_full",
            "may_admit = False",
        ),
        (
            "what computes the last token of a prefill is a step of its own",
            "                self._set_due(job, 1)  # the last token of its prefill\n",
            "                self._set_due(job, 2)\n",
        ),
        ("decodes end their spans oldest first", "job.number, job))", "-job.number, job))"),
        ("contexts grow with each step", "self._context_base + num_decodes * self._num_steps", "self._context_base"),
        (
            "a slower engine is so from its next step on",
            "        self._slowdown = factor\n        self._replan(now)\n",
            "        self._slowdown = factor\n",
        ),
        ("loads follow each other", "max(now, self._loaded_at)", "now"),
        ("loads stand still, too", "        self._loaded_at += duration\n", ""),
        ("a slow engine loads slowly", "job.load_s * self._slowdown", "job.load_s"),
    )
)
