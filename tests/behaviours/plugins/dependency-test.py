from leveret.plugins.hooks import DependencyHold, Plugin


class DependencyTest(Plugin):
    def dependency_test(self, job, dependency):
        return DependencyHold(dependency["value"])
