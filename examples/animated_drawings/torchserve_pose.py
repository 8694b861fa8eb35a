"""The pose model as a handler of TorchServe; Animated Drawings' client reads its answers."""

from keypoints import described, joints_of
from networks import JOINTS, Pose
from torchserve_detector import DrawnHumanoidDetector


class DrawnHumanoidPoseEstimator(DrawnHumanoidDetector):
    """Answers with a list of one `{"keypoints"}`: COCO's, with x, y and a score."""

    network = staticmethod(lambda: Pose(len(JOINTS)))

    def look(self, images):
        """Return the joints of each figure, which fills its image."""
        return joints_of(self.model, images)

    def answer(self, seen):
        """Return the keypoints of one figure."""
        return [described(seen)]
