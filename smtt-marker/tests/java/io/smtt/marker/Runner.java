package io.smtt.marker;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Comparator;

/** Runs every {@link Test} of the named classes, and prints results as cargo does. */
final class Runner {
    private Runner() {}

    public static void main(String[] classes) throws Exception {
        long start = System.nanoTime();
        int passed = 0;
        int failed = 0;
        for (String name : classes) {
            Class<?> type = Class.forName("io.smtt.marker." + name);
            Method[] methods = type.getDeclaredMethods();
            Arrays.sort(methods, Comparator.comparing(Method::getName));
            int found = 0;
            for (Method method : methods) {
                if (!method.isAnnotationPresent(Test.class)) {
                    continue;
                }
                found++;
                Throwable error = run(type, method);
                System.out.println("test " + name + "::" + method.getName() + " ... " + (error == null ? "ok" : "FAILED"));
                if (error == null) {
                    passed++;
                } else {
                    failed++;
                    error.printStackTrace(System.out);
                }
            }
            if (found == 0) {
                System.out.println("test " + name + " ... FAILED: it has no test");
                failed++;
            }
        }
        if (passed + failed == 0) {
            System.out.println("test Runner ... FAILED: no class is named");
            failed++;
        }
        System.out.printf("%ntest result: %s. %d passed; %d failed; 0 ignored; 0 measured; 0 filtered out; finished in %.2fs%n",
                failed == 0 ? "ok" : "FAILED", passed, failed, (System.nanoTime() - start) / 1e9);
        System.exit(failed == 0 ? 0 : 1);
    }

    private static Throwable run(Class<?> type, Method method) {
        try {
            method.invoke(type.getDeclaredConstructor().newInstance());
            return null;
        } catch (InvocationTargetException e) {
            return e.getCause();
        } catch (ReflectiveOperationException e) {
            return e;
        }
    }
}
