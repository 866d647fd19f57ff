package io.smtt.marker;

import java.lang.reflect.Method;

/**
 * The buffers of a cached DataFrame. Spark stores it as objects, batches of columns, and each column of a batch is one
 * array of bytes.
 */
final class Columns {
    private static final String BATCH = "org.apache.spark.sql.execution.columnar.DefaultCachedBatch";
    private static final byte[][] NONE = new byte[0][];

    private Columns() {}

    /** The arrays of a block's value; none where the value is not a cached DataFrame. */
    static byte[][] of(Object value) {
        if (!(value instanceof Object[]) || ((Object[]) value).length == 0) {
            return NONE;
        }
        Object[] batches = (Object[]) value;
        try {
            int count = 0;
            Method buffers = null;
            byte[][][] found = new byte[batches.length][][];
            for (int i = 0; i < batches.length; i++) {
                if (batches[i] == null || !batches[i].getClass().getName().equals(BATCH)) {
                    return NONE;
                }
                if (buffers == null) {
                    buffers = batches[i].getClass().getMethod("buffers");
                }
                found[i] = (byte[][]) buffers.invoke(batches[i]);
                count += found[i].length;
            }
            byte[][] all = new byte[count][];
            int at = 0;
            for (byte[][] batch : found) {
                System.arraycopy(batch, 0, all, at, batch.length);
                at += batch.length;
            }
            return all;
        } catch (ReflectiveOperationException e) {
            Warnings.once("the columns of a cached DataFrame are not found", e);
            return NONE;
        }
    }
}
