"""Terms of temporaries that nothing reads are left out before differentiation: what is not read has no cotangent."""
from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.differentiate.normalise import NormalForm, Update
from tcjit.grammar.differentiate.simplify import conjunction, where
from tcjit.grammar.liveness import is_guarded_by, live_conditions


def without_dead_terms(form: NormalForm) -> NormalForm:
    """The normal form in which sums into temporaries have the conditions between indices under which all statements read them."""
    returned = {*form.definition.returns, *form.initial.values()}
    sums = {u.target: u.left for u in form.updates if u.operator == "+=" and u.target not in returned and not u.targets}
    exprs = [expr for u in form.updates for expr in (u.value, *u.targets.values())]
    live = live_conditions(exprs, sums) if sums else {}

    def restricted(u: Update) -> Update:
        if u.operator != "+=" or u.left != sums.get(u.target):
            return u
        missing = [condition for condition in live.get(u.target, ()) if not is_guarded_by(u.value, condition)]
        return replace(u, value=where(conjunction(*missing), u.value)) if missing else u

    return replace(form, updates=tuple(map(restricted, form.updates))) if live else form
