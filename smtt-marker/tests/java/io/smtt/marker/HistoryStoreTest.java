package io.smtt.marker;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/** A store that other users may write to. */
final class HistoryStoreTest {
    private static final List<HistoryStore.Row> ROWS = new ArrayList<>();

    private static List<String> names(Path folder) throws IOException {
        List<String> names = new ArrayList<>();
        try (Stream<Path> all = Files.list(folder)) {
            all.map(path -> path.getFileName().toString()).sorted().forEach(names::add);
        }
        return names;
    }

    private static void refused(HistoryStore store, String what) {
        try {
            store.open(HistoryFolder.APPLICATION, HistoryFolder.APPLICATION);
        } catch (IOException expected) {
            Check.that(expected.toString(), expected.getMessage().contains("is there already"));
            return;
        }
        throw new AssertionError(what + " was taken for the application's folder");
    }

    @Test
    void aFolderThatIsThereIsNotTheApplications() throws IOException {
        try (HistoryFolder folder = new HistoryFolder()) {
            Path own = folder.store.resolve(HistoryFolder.APPLICATION);
            Path others = Files.createDirectories(folder.path.resolve("others"));
            Files.createDirectories(folder.store);
            Files.createSymbolicLink(own, others);
            refused(folder.open(() -> {}), "a link");
            Files.delete(own);
            Files.createSymbolicLink(own, folder.path.resolve("nowhere"));
            refused(folder.open(() -> {}), "a link to nowhere");
            Files.delete(own);
            Files.createDirectory(own);
            refused(folder.open(() -> {}), "a folder");
            Files.delete(own);
            Files.createFile(own);
            refused(folder.open(() -> {}), "a file");
            Check.same("files of others", 0, names(others).size());
        }
    }

    @Test
    void filesAreTheOwnersAndTheGroups() throws IOException {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryStore store = folder.open(() -> {});
            store.open(HistoryFolder.APPLICATION, HistoryFolder.APPLICATION);
            store.write(HistoryTable.META, 1, ROWS);
            Path own = folder.store.resolve(HistoryFolder.APPLICATION);
            Check.same("names", Arrays.asList("meta-000001.parquet"), names(own));
            Check.same("folder", "rwxr-x---", PosixFilePermissions.toString(Files.getPosixFilePermissions(own)));
            Check.same("file", "rw-r-----",
                    PosixFilePermissions.toString(Files.getPosixFilePermissions(own.resolve("meta-000001.parquet"))));
        }
    }

    /** Links under the names of files to come, made before a write and, by another thread, at any moment of it. */
    @Test
    void noLinkIsFollowed() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryStore store = folder.open(() -> {});
            store.open(HistoryFolder.APPLICATION, HistoryFolder.APPLICATION);
            Path own = folder.store.resolve(HistoryFolder.APPLICATION);
            Path victim = Files.write(folder.path.resolve("victim"), "mine".getBytes("UTF-8"));
            Path temporary = own.resolve(".meta-000001.parquet.inprogress");
            Files.createSymbolicLink(temporary, victim);
            Files.createSymbolicLink(own.resolve("meta-000001.parquet"), victim);
            store.write(HistoryTable.META, 1, ROWS);
            Check.same("the victim", "mine", new String(Files.readAllBytes(victim), "UTF-8"));
            Check.that("a file of its own", Files.isRegularFile(own.resolve("meta-000001.parquet"),
                    java.nio.file.LinkOption.NOFOLLOW_LINKS));

            AtomicBoolean isOver = new AtomicBoolean();
            Thread attacker = new Thread(() -> {
                while (!isOver.get()) {
                    try {
                        Files.createSymbolicLink(temporary, victim);
                    } catch (IOException isThere) {
                        // Until the writer removes it.
                    }
                }
            });
            attacker.start();
            boolean isRefused = false;
            try {
                for (int i = 0; i < 20_000 && !isRefused; i++) {
                    try {
                        store.write(HistoryTable.META, 1, ROWS);
                    } catch (IOException raced) {
                        isRefused = true;
                    }
                }
            } finally {
                isOver.set(true);
                attacker.join();
            }
            // Whether a link wins a race is the scheduler's matter; what it leads to must not change in either case.
            Check.same("the victim after the races", "mine", new String(Files.readAllBytes(victim), "UTF-8"));
        }
    }
}
