"""The names of `import iosim`, and where they are defined: `names.py` reads it, too."""

from iosim.api.calls import check_claim as check_claim
from iosim.api.calls import compare as compare
from iosim.api.calls import explain as explain
from iosim.api.calls import orders as orders
from iosim.api.calls import pick_tiles as pick_tiles
from iosim.api.calls import predict as predict
from iosim.api.calls import predict_code as predict_code
from iosim.api.calls import study_tile as study_tile
from iosim.api.models import decode as decode
from iosim.api.models import formula as formula
from iosim.api.models import latency as latency
from iosim.api.models import model as model
from iosim.api.models import ring as ring
from iosim.api.models import sweep as sweep
from iosim.api.models import train_memory as train_memory
from iosim.base.errors import InputError as InputError
from iosim.catalog.algorithms.one_loop import LoopAlgorithm as LoopAlgorithm
from iosim.catalog.libraries import Overrides as Overrides
from iosim.catalog.libraries import resolve as resolve
from iosim.hardware.profile import HardwareProfile as HardwareProfile
from iosim.hardware.profile import list_profiles as list_profiles
from iosim.hardware.profile import load_profile as load_profile
from iosim.kernel.kernel import Kernel as Kernel
from iosim.kernel.kernel import Tile as Tile
from iosim.prediction.result import Prediction as Prediction
from iosim.problem.attention import AttentionProblem as AttentionProblem
