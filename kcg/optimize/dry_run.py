"""`--dry-run`: what an optimisation would do, without measuring anything."""

from __future__ import annotations

import sys
from dataclasses import asdict

from kcg.commandline import counted
from kcg.optimize import handwritten
from kcg.optimize.console import Progress
from kcg.optimize.session import Session
from kcg.optimize.settings import Settings, check_writable


def describe(settings: Settings, progress: Progress, *, json_mode: bool) -> None:
    """Capture the workload and say what a run would do: kernels, calls, target, operations, the longest first.

    The script of a workload that is one is run, since its kernels are not known otherwise; nothing is timed or written.
    """
    from kcg.kernel.contractions import arithmetic, find_recompute
    from kcg.optimize.memory import room_on, shortage
    from kcg.optimize.whole_model import is_runnable
    from kcg.types import canonical_json

    check_writable(settings.folder)
    with Session(settings, progress, writes=False) as session:
        kernels = handwritten.read_files(session)
        workload = session.capture()
        works = session.plan()
        handwritten.offer(session, kernels)
        target = session.service.target
        rows = sorted(
            (
                {
                    "id": w.call.region.id,
                    "name": w.space.name(w.space.baseline()),
                    "calls": w.call.calls,
                    "operations": float(arithmetic(w.space.ast)),
                    "schedule": str(w.space.baseline()),
                    "first_actions": len(w.space.actions(w.space.start())),
                    "handwritten": [[offer.name, offer.reason] for offer in w.offers],
                }
                for w in works
            ),
            key=lambda row: -float(str(row["operations"])) * int(str(row["calls"])),
        )
        waste = [find_recompute(w.space.ast, w.call.region.id, w.call.calls) for w in works]
        if json_mode:
            plan = {
                "workload": workload.name, "preset": workload.preset, "target": target.model, "search": settings.search,
                "budget": settings.budget_text, "kernels": rows, "folder": str(settings.folder),
                "left_out": [asdict(left) for left in workload.left_out],
            }  # fmt: skip
            sys.stdout.write(canonical_json(plan) + "\n")
            return
        out = sys.stdout.write
        out(f"would optimise {workload.name} {workload.preset} on {target.model} with {settings.search}\n")
        calls = sum(w.call.calls for w in works)
        if is_runnable(settings, workload.name) and (room := room_on(session.choice.device)) is not None:
            fits = "" if workload.memory_bytes <= room.free else ", which is refused"
            out(f"{shortage(workload, room, device=session.choice.device)}{fits}\n")
        total = sum(float(str(r["operations"])) * int(str(r["calls"])) for r in rows)
        counts = f"{counted(len({w.call.region.id for w in works}), 'kernel')}, {counted(calls, 'call')}"
        out(f"{counts}, {total / 1e9:.2f} GFLOP; budget {settings.budget_text or 'none'}\n")
        for row in rows[:10]:
            millions = float(str(row["operations"])) / 1e6
            out(f"  {row['name']!s:28} {row['calls']!s:>5} calls  {millions:10.1f} MFLOP each\n")
        if len(rows) > 10:
            out(f"  and {len(rows) - 10} smaller ones\n")
        for work in works:
            for offer in work.offers:
                name, fate = work.space.name(work.space.baseline()), "fits" if offer.schedule else offer.reason
                out(f"written by hand: {offer.name} for {name} ({work.call.region.id[:12]}): {fate}\n")
        for left in workload.left_out:
            out(f"{left}\n")
        for warning in session.warnings:
            out(f"warning: {warning}\n")
        for found in waste:
            if found is not None:
                out(f"recomputes {found.factor:.1f} times: {found.advice}\n")
        out(f"would write RESULT.json, report.html and journal.sqlite to {settings.folder}\n")
