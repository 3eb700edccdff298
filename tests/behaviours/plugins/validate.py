from leveret.plugins.hooks import Plugin, Reject


class Validate(Plugin):
    def validate(self, job, spec):
        wanted = spec["attributes"]["system"].get("jobtap", {}).get("validate-test-id", 1)
        return None if wanted == 1 else Reject(f"validate-test-id is {wanted}")
