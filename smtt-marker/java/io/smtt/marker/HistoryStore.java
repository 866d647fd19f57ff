package io.smtt.marker;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.PositionOutputStream;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.io.api.RecordConsumer;
import org.apache.parquet.schema.MessageTypeParser;

/**
 * Files of an application's folder in the store: each is made in memory, written under a hidden name and renamed. In an
 * object store it is written under its own name, which has the whole file or none.
 */
class HistoryStore {
    private static final FsPermission FOLDER = new FsPermission((short) 0750);
    private static final FsPermission FILE = new FsPermission((short) 0640);
    /** Schemes of object stores whose files are there when their upload is complete, and where a rename is a copy. */
    private static final Set<String> OBJECTS =
            Collections.unmodifiableSet(new HashSet<>(Arrays.asList("s3a", "s3", "s3n", "gs", "oss", "cosn", "obs", "ks3", "tos")));

    private final Path store;
    private final Configuration conf;
    private FileSystem files;
    private Path folder;
    private String application;
    private boolean isMade;

    HistoryStore(Path store, Configuration conf) {
        this.store = store;
        this.conf = conf;
    }

    @Override
    public String toString() {
        return store.toString();
    }

    /** Makes the application's folder. */
    void open(String name, String id) throws IOException {
        if (folder != null) {
            return;
        }
        FileSystem own = connect();
        // Local files need no checksums beside.
        FileSystem raw = own instanceof LocalFileSystem ? ((LocalFileSystem) own).getRawFileSystem() : own;
        boolean isOpen = false;
        try {
            Path path = new Path(raw.makeQualified(store), name);
            if (!isMade) {
                make(raw, path);
                isMade = true;
            }
            files = raw;
            application = id;
            folder = path;
            isOpen = true;
        } finally {
            if (!isOpen) {
                own.close();
            }
        }
    }

    /** A file system of its own: the application may close the shared one. */
    FileSystem connect() throws IOException {
        return FileSystem.newInstance(store.toUri(), conf);
    }

    /** Gives back the file system's connections. */
    void close() {
        try {
            if (files != null) {
                files.close();
            }
        } catch (IOException e) {
            // Every file is closed already.
        }
    }

    /** A folder that is there already is another driver's, or was put there by another user. */
    private static void make(FileSystem files, Path path) throws IOException {
        IOException isThere = new IOException(path + " is there already: remove it, or set another " + History.STORE);
        if (files instanceof RawLocalFileSystem) {
            java.nio.file.Path folder = Paths.get(path.toUri().getPath());
            Files.createDirectories(folder.getParent());
            try {
                Files.createDirectory(folder, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwxr-x---")));
            } catch (FileAlreadyExistsException e) {
                throw isThere;
            }
            return;
        }
        if (files.exists(path)) {
            throw isThere;
        }
        if (!files.mkdirs(path, FOLDER)) {
            throw new IOException("cannot make " + path);
        }
    }

    /** A new file. On a local disk no link is followed: the folder's name may have been given to another. */
    private OutputStream create(Path path) throws IOException {
        if (!(files instanceof RawLocalFileSystem)) {
            return FileSystem.create(files, path, FILE);
        }
        java.nio.file.Path file = Paths.get(path.toUri().getPath());
        Files.deleteIfExists(file);
        return Channels.newOutputStream(Files.newByteChannel(file, EnumSet.of(StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE),
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-r-----"))));
    }

    /** A row of a table that is no task: numbers and texts in the order of its columns. */
    interface Row {
        /** Number of a column. */
        long number(int column);

        /** Text of a column. */
        String text(int column);
    }

    /** Writes a table's part. A file of that name is one whose part was not finished. */
    void write(HistoryTable table, long part, Iterable<? extends Row> rows) throws IOException {
        Bytes bytes = new Bytes();
        try (ParquetWriter<Row> writer = new Builder(bytes, table, application).build()) {
            for (Row row : rows) {
                writer.write(row);
            }
        }
        String name = String.format(Locale.ROOT, "%s-%06d.parquet", table.name, part);
        Path finished = new Path(folder, name);
        if (OBJECTS.contains(String.valueOf(folder.toUri().getScheme()).toLowerCase(Locale.ROOT))) {
            put(finished, bytes);
            return;
        }
        Path temporary = new Path(folder, "." + name + ".inprogress");
        try (OutputStream out = create(temporary)) {
            bytes.out.writeTo(out);
        }
        files.delete(finished, false);
        if (!files.rename(temporary, finished)) {
            throw new IOException("cannot rename " + temporary + " to " + finished);
        }
    }

    /** Uploads a file. */
    private void put(Path path, Bytes bytes) throws IOException {
        boolean isWhole = false;
        try {
            // Without permissions: objects have none.
            try (OutputStream out = files.create(path, true)) {
                bytes.out.writeTo(out);
                isWhole = true;
            }
        } finally {
            if (!isWhole) {
                // The end of the stream may have uploaded what it had.
                files.delete(path, false);
            }
        }
    }

    /** A file in memory. */
    private static final class Bytes implements OutputFile {
        final ByteArrayOutputStream out = new ByteArrayOutputStream(64 << 10);

        @Override
        public PositionOutputStream create(long block) {
            return new PositionOutputStream() {
                @Override
                public long getPos() {
                    return out.size();
                }

                @Override
                public void write(int one) {
                    out.write(one);
                }

                @Override
                public void write(byte[] some, int from, int count) {
                    out.write(some, from, count);
                }
            };
        }

        @Override
        public PositionOutputStream createOrOverwrite(long block) {
            return create(block);
        }

        @Override
        public boolean supportsBlockSize() {
            return false;
        }

        @Override
        public long defaultBlockSize() {
            return 0;
        }
    }

    private static final class Builder extends ParquetWriter.Builder<Row, Builder> {
        private final HistoryTable table;
        private final String application;

        Builder(OutputFile file, HistoryTable table, String application) {
            super(file);
            this.table = table;
            this.application = application;
            withCompressionCodec(CompressionCodecName.ZSTD);
            withConf(new Configuration(false));
            withDictionaryEncoding(false);
            for (String column : table.repeated()) {
                withDictionaryEncoding(column, true);
            }
            try {
                // Since Parquet 1.15; statistics of a part are larger than its data.
                getClass().getMethod("withStatisticsEnabled", boolean.class).invoke(this, false);
            } catch (ReflectiveOperationException olderParquet) {
                // Its parts are larger, and equal.
            }
        }

        @Override
        protected Builder self() {
            return this;
        }

        @Override
        protected WriteSupport<Row> getWriteSupport(Configuration conf) {
            return new Rows(table, application);
        }
    }

    private static final class Rows extends WriteSupport<Row> {
        private final HistoryTable table;
        private final String application;
        private RecordConsumer out;

        Rows(HistoryTable table, String application) {
            this.table = table;
            this.application = application;
        }

        @Override
        public WriteContext init(Configuration conf) {
            Map<String, String> said = new HashMap<>();
            said.put("smtt.history", table.name);
            said.put("smtt.history.version", "1");
            said.put("smtt.application_id", application);
            return new WriteContext(MessageTypeParser.parseMessageType(table.schema()),
                    Collections.unmodifiableMap(said));
        }

        @Override
        public void prepareForWrite(RecordConsumer consumer) {
            out = consumer;
        }

        @Override
        public void write(Row row) {
            out.startMessage();
            for (int i = 0; i < table.width(); i++) {
                boolean isText = table.kinds[i] == HistoryTable.Kind.TEXT;
                String text = isText ? row.text(i) : null;
                long number = isText ? 0 : row.number(i);
                if (table.optional[i] && (isText ? text == null : number == HistoryRow.ABSENT)) {
                    continue;
                }
                out.startField(table.columns[i], i);
                switch (table.kinds[i]) {
                    case TEXT:
                        out.addBinary(Binary.fromString(text == null ? "" : text));
                        break;
                    case INT:
                        out.addInteger((int) number);
                        break;
                    case FLAG:
                        out.addBoolean(number != 0);
                        break;
                    default:
                        out.addLong(number);
                }
                out.endField(table.columns[i], i);
            }
            out.endMessage();
        }
    }
}
