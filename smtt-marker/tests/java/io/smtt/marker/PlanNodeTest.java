package io.smtt.marker;

import java.util.Arrays;
import org.apache.spark.rdd.RDDOperationScope;
import org.apache.spark.storage.RDDInfo;
import org.apache.spark.storage.StorageLevel;
import scala.Option;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/** Needs Spark's classes of descriptions, not a running Spark. */
final class PlanNodeTest {
    /** Places of the name and of the id in a description of an RDD: after number, kind, three words and four strings. */
    private static final int NODE = 9;

    private static Option<RDDOperationScope> scope(String name, Option<RDDOperationScope> parent, String id) {
        return Option.apply(new RDDOperationScope(name, parent, id));
    }

    /** An RDD whose scope is that, or fails as that of a Spark without scopes. */
    private static final class Rdd extends RDDInfo {
        private static final long serialVersionUID = 1;
        private final boolean fails;

        @SuppressWarnings({"unchecked", "rawtypes"})
        Rdd(Option<RDDOperationScope> scope, boolean fails) {
            super(7, "MapPartitionsRDD", 2, StorageLevel.NONE(), false, (Seq) Nil$.MODULE$, "count at Job.java:9", scope, null);
            this.fails = fails;
        }

        @Override
        public Option<RDDOperationScope> scope() {
            if (fails) {
                throw new NoSuchMethodError("scope");
            }
            return super.scope();
        }
    }

    private static Object[] described(Option<RDDOperationScope> scope) throws Exception {
        return described(new Rdd(scope, false));
    }

    private static Object[] described(RDDInfo rdd) throws Exception {
        Catalogue catalogue = new Catalogue();
        new StageListener(catalogue, new Catalogue()).describe(rdd);
        Object[] all = catalogue.since(0);
        Check.same("descriptions", 1, all.length);
        return (Object[]) all[0];
    }

    @Test
    void theInnermostScopeIsTheNode() throws Exception {
        Object[] said = described(scope("Exchange", scope("outer", Option.empty(), "3"), "4"));
        Check.same("description", "[1, rdd, 7, 2, 0, MapPartitionsRDD, count at Job.java:9, "
                + StorageLevel.NONE().description() + ", , Exchange, 4]", Arrays.toString(said));
    }

    @Test
    void withoutAScopeThereIsNoNode() throws Exception {
        for (Option<RDDOperationScope> none : Arrays.asList(Option.<RDDOperationScope>empty(), null)) {
            Object[] said = described(none);
            Check.same("node", "", said[NODE]);
            Check.same("its id", "", said[NODE + 1]);
        }
        Object[] nameless = described(scope(null, Option.empty(), null));
        Check.same("no name", "", nameless[NODE]);
        Check.same("no id", "", nameless[NODE + 1]);
    }

    @Test
    void aScopeThatFailsLeavesTheRest() throws Exception {
        Object[] said = described(new Rdd(null, true));
        Check.same("name", "MapPartitionsRDD", said[5]);
        Check.same("node", "", said[NODE]);
    }

    @Test
    void aNameOfAMegabyteIsCut() throws Exception {
        char[] many = new char[1 << 20];
        Arrays.fill(many, '\u0001');
        Object[] said = described(scope(new String(many), Option.empty(), new String(many)));
        Check.same("characters of the name", 300, ((String) said[NODE]).length());
        Check.same("characters of the id", 40, ((String) said[NODE + 1]).length());
    }
}
