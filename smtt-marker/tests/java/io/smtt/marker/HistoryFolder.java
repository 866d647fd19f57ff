package io.smtt.marker;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.net.URI;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.parquet.example.data.Group;
import org.apache.parquet.hadoop.ParquetReader;
import org.apache.parquet.hadoop.api.ReadSupport;
import org.apache.parquet.hadoop.example.GroupReadSupport;
import org.apache.parquet.io.DelegatingSeekableInputStream;
import org.apache.parquet.io.InputFile;
import org.apache.parquet.io.SeekableInputStream;

/** A folder of a test that goes with it, a store in it, and the parts there as Parquet's own reader sees them. */
final class HistoryFolder implements AutoCloseable {
    static final String APPLICATION = "app-1";

    final Path path = Files.createTempDirectory("smtt-test-");
    final Path store = path.resolve("store");

    HistoryFolder() throws IOException {}

    /** The driver's side of the store. Hadoop asks for its user's name in a way that later Java refuses; a file system that is made here does not. */
    HistoryStore open(Runnable before) {
        return new HistoryStore(new org.apache.hadoop.fs.Path(store.toUri()), new Configuration(false)) {
            @Override
            FileSystem connect() throws IOException {
                before.run();
                FileSystem files = new LocalFileSystem();
                files.initialize(URI.create("file:///"), new Configuration(false));
                return files;
            }
        };
    }

    /** Files of a table. */
    List<Path> files(String table) throws IOException {
        List<Path> files = new ArrayList<>();
        if (Files.isDirectory(store.resolve(APPLICATION))) {
            try (Stream<Path> all = Files.list(store.resolve(APPLICATION))) {
                all.filter(file -> file.getFileName().toString().startsWith(table + "-")).sorted().forEach(files::add);
            }
        }
        return files;
    }

    /** Rows of a file. */
    static List<Group> rows(Path file) throws IOException {
        List<Group> rows = new ArrayList<>();
        try (ParquetReader<Group> reader = new Groups(new InMemory(Files.readAllBytes(file))).build()) {
            for (Group row = reader.read(); row != null; row = reader.read()) {
                rows.add(row);
            }
        }
        return rows;
    }

    /** Rows of a table, part by part. */
    List<List<Group>> parts(String table) throws IOException {
        List<List<Group>> parts = new ArrayList<>();
        for (Path file : files(table)) {
            parts.add(rows(file));
        }
        return parts;
    }

    /** What a part says of itself. */
    static String said(List<Group> documents) {
        return documents.get(0).getString("json", 0);
    }

    /** A number that a part says of itself. */
    static long said(List<Group> documents, String name) {
        String after = said(documents).split("\"" + name + "\":")[1];
        return Long.parseLong(after.split("[,}]")[0]);
    }

    private static final class Groups extends ParquetReader.Builder<Group> {
        Groups(InputFile file) {
            super(file);
        }

        @Override
        protected ReadSupport<Group> getReadSupport() {
            return new GroupReadSupport();
        }
    }

    /** A file that was read; Hadoop's own would need a user, see {@link #open}. */
    private static final class InMemory extends ByteArrayInputStream implements InputFile {
        InMemory(byte[] bytes) {
            super(bytes);
        }

        @Override
        public long getLength() {
            return count;
        }

        @Override
        public SeekableInputStream newStream() {
            return new DelegatingSeekableInputStream(this) {
                @Override
                public long getPos() {
                    return pos;
                }

                @Override
                public void seek(long to) {
                    pos = (int) to;
                }
            };
        }
    }

    @Override
    public void close() throws IOException {
        Files.walkFileTree(path, new SimpleFileVisitor<Path>() {
            @Override
            public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) throws IOException {
                Files.delete(file);
                return FileVisitResult.CONTINUE;
            }

            @Override
            public FileVisitResult postVisitDirectory(Path folder, IOException error) throws IOException {
                Files.delete(folder);
                return FileVisitResult.CONTINUE;
            }
        });
    }
}
