"""What decides a run, as JSON and as part of a name."""

import dataclasses
import hashlib
import json


class Settings:
    """For dataclasses with a field `options`: pairs of arguments and values."""

    def settings(self):
        """The fields as JSON has them, options in the order of their names."""
        fields = dataclasses.asdict(self)
        fields["options"] = dict(sorted(self.options))
        return json.loads(json.dumps(fields))

    @property
    def digest(self):
        """Another one for other settings."""
        text = json.dumps(self.settings(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]
