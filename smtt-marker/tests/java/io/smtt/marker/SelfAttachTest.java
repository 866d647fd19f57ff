package io.smtt.marker;

/** Runs in a JVM of its own, without the agent; the property {@code attaches} says what its options allow. */
final class SelfAttachTest {
    @Test
    void theAgentRunsAfterwardsWhereTheJvmAllowsIt() {
        SelfAttach.ensure();
        Check.same("the agent runs", Boolean.getBoolean("attaches"), Transformer.installed());
        // A second time changes nothing.
        SelfAttach.ensure();
        Check.same("the agent runs", Boolean.getBoolean("attaches"), Transformer.installed());
    }
}
