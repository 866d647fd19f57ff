package io.smtt.marker;

import java.io.IOException;
import java.io.InputStream;
import java.io.ByteArrayOutputStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.util.Arrays;

/**
 * Finds the native library: the configured path, beside the jar, installed, or unpacked from the jar.
 *
 * <p>The daemon puts its probes on the file (its inode), in advance where it knows the path: so a path that stays
 * the same for every executor comes first, and unpacking goes to one place per user, once per version.
 */
final class LibraryFile {
    /** The library with the variable of a thread's context. It is in the jar only. */
    static final String THREAD_CONTEXT = "libsmtt_thread_context.so";
    private static final String NAME = "libsmtt_marker.so";
    private static final Path INSTALLED = Paths.get("/usr/lib/smtt", NAME);

    private LibraryFile() {}

    static Path find() throws Exception {
        String told = Options.get("library");
        if (told != null) {
            Path path = Paths.get(told).toAbsolutePath();
            if (!Files.isReadable(path)) {
                throw new IOException("library=" + told + " is not a readable file");
            }
            return path;
        }
        for (Path path : Arrays.asList(besideJar(), INSTALLED)) {
            if (path != null && Files.isReadable(path) && isForThisProcessor(path)) {
                return path;
            }
        }
        return bundledFile(NAME);
    }

    /** Whether a library is of this JVM's processor: a folder that several machines share may hold another's. */
    private static boolean isForThisProcessor(Path library) throws IOException {
        byte[] head = new byte[20];
        try (InputStream in = Files.newInputStream(library)) {
            // A read of a local file returns all bytes at once; a shorter file is not a library.
            if (in.read(head) < head.length) {
                return false;
            }
        }
        // e_machine of ELF, least significant byte first.
        int machine = (head[18] & 0xff) | (head[19] & 0xff) << 8;
        switch (processor()) {
            case "x86_64":
                return machine == 62;
            case "aarch64":
                return machine == 183;
            case "riscv64":
                return machine == 243;
            default:
                // Loading it will show.
                return true;
        }
    }

    /** The processor, in the word that names the folder of its library in the jar. */
    private static String processor() {
        String told = System.getProperty("os.arch");
        return told.equals("amd64") ? "x86_64" : told;
    }

    private static Path besideJar() {
        try {
            Path jar = Paths.get(LibraryFile.class.getProtectionDomain().getCodeSource().getLocation().toURI());
            return jar.resolveSibling(NAME);
        } catch (Exception e) {
            return null;
        }
    }

    /** A library of the jar, unpacked. */
    static Path bundledFile(String name) throws Exception {
        byte[] bytes = bundled(name);
        String user = System.getProperty("user.name");
        Path folder = Paths.get(System.getProperty("java.io.tmpdir"), "smtt-marker-" + user);
        if (!Files.isDirectory(folder, LinkOption.NOFOLLOW_LINKS)) {
            try {
                Files.createDirectory(folder, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
            } catch (FileAlreadyExistsException another) {
                // Another JVM of this user was first, or another process, which the checks below find.
            }
        }
        // Another user's folder of that name in a shared place could hold that user's code.
        boolean ours = Files.getOwner(folder, LinkOption.NOFOLLOW_LINKS).getName().equals(user)
                && PosixFilePermissions.toString(Files.getPosixFilePermissions(folder, LinkOption.NOFOLLOW_LINKS)).equals("rwx------");
        if (!ours) {
            throw new IOException(folder + " belongs to another user" + (name.equals(NAME) ? "; give library=PATH" : ""));
        }
        // A folder per version: the daemon knows the file in a process's memory map by its name.
        Path version = Files.createDirectories(folder.resolve(digest(bytes)));
        Path file = version.resolve(name);
        if (Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS) && Arrays.equals(Files.readAllBytes(file), bytes)) {
            return file;
        }
        Path part = Files.createTempFile(version, "part", ".so");
        Files.write(part, bytes);
        return Files.move(part, file, StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE);
    }

    private static byte[] bundled(String name) throws IOException {
        String resource = "/native/linux-" + processor() + "/" + name;
        try (InputStream in = LibraryFile.class.getResourceAsStream(resource)) {
            if (in == null) {
                String elsewhere = name.equals(NAME) ? " beside the jar, at " + INSTALLED + " (for this processor), or" : "";
                throw new IOException("no " + name + elsewhere + " in the jar (" + resource + ")");
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            byte[] part = new byte[8192];
            for (int read = in.read(part); read >= 0; read = in.read(part)) {
                out.write(part, 0, read);
            }
            return out.toByteArray();
        }
    }

    private static String digest(byte[] bytes) throws Exception {
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(bytes);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 8; i++) {
            text.append(String.format("%02x", hash[i]));
        }
        return text.toString();
    }
}
