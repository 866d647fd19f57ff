package io.smtt.marker;

import org.apache.spark.rdd.RDDOperationScope;
import org.apache.spark.storage.RDDInfo;
import scala.Option;

/**
 * What made an RDD, as Spark's innermost scope around it says: the plan node of a query, else the operation, such as
 * {@code map}. Spark made the scope with the RDD, so nothing is computed here. A class of its own: where a Spark has no
 * scopes, RDDs lack their nodes and nothing else.
 */
final class PlanNode {
    private static final PlanNode NONE = new PlanNode("", "");

    final String name;
    /** Unique in the application; the RDDs of one node have the same. */
    final String id;

    private PlanNode(String name, String id) {
        this.name = name;
        this.id = id;
    }

    /** Never throws. */
    static PlanNode of(RDDInfo rdd) {
        try {
            Option<RDDOperationScope> scope = rdd.scope();
            return scope == null || scope.isEmpty() ? NONE : new PlanNode(scope.get().name(), scope.get().id());
        } catch (Throwable e) {
            Warnings.once("RDDs will have no plan nodes", e);
            return NONE;
        }
    }
}
