"""From a safetensors checkpoint to serving over several ranks (checkpoint_to_serving.py): what was trained on n ranks is resumed
on m, and served by one process."""

import dataclasses
import pathlib
import tempfile

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.integrations.moe")
import checkpoint_to_serving as program
import two_processes
from checkpoint_to_serving import Journey

OTHERS = ((2, 1), (1, 1), (3, 1))
DIVIDED = ((4, 2), (2, 2), (2, 1))
JOURNEYS = {
    # CI
    "rowwise": Journey("rowwise", mixed=True, micro_batches=2, clips=False, inference=True, resumes=((1, 1), (2, 1))),
    "delayed": Journey("delayed", mixed=True, unreduced=True, asynchronous=True),
    "float8 tensorwise": Journey("tensorwise", "float8", mixed=True, tied=True, loads="first", resumes=((1, 1),)),
    "experts": Journey("rowwise", model="experts", mixed=True, resumes=((1, 1),)),
    # nightly
    "blockwise": Journey("blockwise", dtype=torch.bfloat16, frozen=True, checkpointed="checkpoint_wrapper", resumes=((2, 1),)),
    "tensorwise": Journey("tensorwise", fused=True, micro_batches=6, resumes=OTHERS),
    "rowwise_folded": Journey("rowwise_folded", dtype=torch.bfloat16, offloaded=True, tied=True, micro_batches=12, resumes=OTHERS),
    "rowwise_with_gw_hp": Journey("rowwise_with_gw_hp", mixed=True, checkpointed="gradient_checkpointing", unreduced=True),
    "compiled": Journey("rowwise", mixed=True, compiled=True, unreduced=True),
    "compiled delayed": Journey("delayed", compiled=True, frozen=True),
    "delayed that rank 0 loads": Journey("delayed", loads="first", offloaded=True, asynchronous=True),
    "float8 rowwise": Journey("rowwise", "float8", offloaded=True, frozen=True, unreduced=True),
    "ranks without rows": Journey("rowwise", ranks=3, micro_batches=6, thin=True, resumes=OTHERS),
    "experts on three": Journey(
        "tensorwise", model="experts", ranks=3, micro_batches=6, checkpointed="checkpoint_wrapper", resumes=OTHERS
    ),
    "HSDP": Journey("rowwise", mixed=True, ranks=4, replicas=2, loads="first", resumes=((4, 1), (2, 1))),
    "2-D tensorwise": Journey("tensorwise", mixed=True, ranks=4, tensor=2, resumes=DIVIDED),
    "2-D rowwise": Journey("rowwise", mixed=True, ranks=4, tensor=2, inference=True, resumes=DIVIDED),
    "2-D rowwise_folded": Journey("rowwise_folded", dtype=torch.bfloat16, ranks=4, tensor=2, loads="first", resumes=DIVIDED),
    "2-D float8": Journey("tensorwise", "float8", mixed=True, ranks=4, tensor=2, resumes=((4, 2), (2, 1))),
    "3-D delayed": Journey("delayed", mixed=True, ranks=4, tensor=2, replicas=2, resumes=((4, 2), (2, 1))),
    "to 2-D": Journey("delayed", micro_batches=12, resumes=((4, 2), (2, 2), (3, 1))),
}
IN_CI = list(JOURNEYS)[: list(JOURNEYS).index("blockwise")]


@dataclasses.dataclass(frozen=True)
class Part:
    """A check of two_processes.py: a part of a journey. folder: of all journeys."""

    journey: str
    what: str
    ranks: int
    tensor: int = 1
    folder: str = ""

    @property
    def __name__(self):
        ways = f"_on_{self.ranks}" + (f"_divided_by_{self.tensor}" if self.tensor > 1 else "")
        return f"{self.journey.replace(' ', '_')}-{self.what}{ways}"

    def __call__(self, rank):
        place = pathlib.Path(self.folder, self.journey)
        more = (self.tensor,) if self.what == "resume" else ()
        getattr(program, self.what)(JOURNEYS[self.journey], place, *more)


def parts_of(name):
    journey = JOURNEYS[name]
    resumed = [Part(name, "resume", *how) for how in journey.resumes]
    return [Part(name, "train", journey.ranks, journey.tensor), *resumed, Part(name, "serve", 1)]


PARTS = [part for name in JOURNEYS for part in parts_of(name)]


def is_in_ci(part):
    """Of these journeys all but what another number of ranks resumes besides the first."""
    first = Part(part.journey, "resume", *JOURNEYS[part.journey].resumes[0])
    return part.journey in IN_CI and (part.what != "resume" or part == first)


def in_order(parts):
    """Lists of parts that run in the same processes: trainings first."""
    by_ranks = {}
    for part in sorted(parts, key=lambda part: part.what != "train"):
        by_ranks.setdefault((part.what != "train", part.ranks), []).append(part)
    return list(by_ranks.values())


@pytest.fixture(scope="module")
def folder(request):
    """Of what the parts of selected journeys have left."""
    selected = [item.callspec.params["part"] for item in request.session.items if item.module is request.module]
    names = {part.journey for part in selected}
    gpus = torch.cuda.device_count() if two_processes.DEVICE == "cuda" else 0
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            pathlib.Path(place, name).mkdir()
        parts = [dataclasses.replace(part, folder=place) for part in PARTS if part.journey in names]
        wanted = [part for part in parts if part.what == "train" or dataclasses.replace(part, folder="") in selected]
        for group in in_order(wanted):
            if two_processes.DEVICE == "cpu" or not two_processes.lacks_gpus(group[0].ranks, gpus):
                whole = [part for part in group if part.what == "train" or pathlib.Path(place, part.journey, "trained.pt").exists()]
                two_processes.run_all(whole, place, group[0].ranks)
        yield place


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=() if is_in_ci(part) else pytest.mark.nightly) for part in PARTS],
    ids=lambda part: part.__name__,
)
def test_checkpoint_to_serving(part, folder):
    journey = JOURNEYS[part.journey]
    lacks = two_processes.lacks_gpus(max(journey.ranks, part.ranks), torch.cuda.device_count())
    if two_processes.DEVICE == "cuda" and lacks:
        pytest.skip(lacks)
    if part.what != "train" and not pathlib.Path(folder, part.journey, "trained.pt").exists():
        pytest.fail("its training has failed")
    two_processes.passed(part, folder, part.ranks)
