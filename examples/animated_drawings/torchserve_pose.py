"""The pose model as a handler of TorchServe; Animated Drawings' client reads its answers."""

import json

from keypoints import described, joints_of
from networks import JOINTS, Pose
from torchserve_detector import DrawnHumanoidDetector


class DrawnHumanoidPoseEstimator(DrawnHumanoidDetector):
    """Answers with a list of one `{"keypoints"}`: COCO's, with x, y and a score."""

    network = staticmethod(lambda: Pose(len(JOINTS)))

    def inference(self, data):
        """Return the joints of each figure, which fills its image."""
        return joints_of(self.model, data)

    def postprocess(self, data):
        """Return the keypoints as JSON."""
        return [json.dumps([described(joints)]) for joints in data]
