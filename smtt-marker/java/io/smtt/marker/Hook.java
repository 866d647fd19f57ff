package io.smtt.marker;

/** One row of the hook table: the rewritten method of Spark, the kind of rewriting, and the callback. */
final class Hook {
    /** How a method is rewritten. Only bodies change, so the same hooks work on classes that are loaded already. */
    enum Kind {
        /** {@code callback(arguments)} at entry. */
        ENTRY,
        /** {@code callback(result, arguments)} at return. */
        RETURN,
        /** {@code callback(arguments)} at return, whatever is returned. */
        EXIT,
        /** {@code argument = callback(argument)} at entry. */
        ARGUMENT,
        /** {@code frame = begin(hook, arguments)}, {@code end(frame)} at return and exception. */
        SCOPE,
        /** As SCOPE, and {@code argument = wrap(argument, frame)} at entry. */
        PULL,
        /** {@code frame = begin(...)}, {@code result = end(result, frame)} at return, {@code abort(frame)} on error. */
        RESULT,
        /** {@code frame = begin(...)}, {@code end(result, frame)} at return of a long; nothing at exception. */
        LONG_RESULT,
        /** {@code before = Context.enter(thread, tag)}, {@code Context.exit(thread, before)}: for frequent methods. */
        HOT,
        /** A call inside the method becomes {@code callback(receiver, arguments)}. */
        CALL
    }

    final Kind kind;
    final String className;
    final String method;
    /** A descriptor; {@code *} at either end matches anything, for types that differ between versions. */
    final String descriptor;

    int index;
    /** Rows of one group are alternatives: at least one must find its target. */
    String group;
    /** Internal name of the class of the callbacks at entry. */
    String callbacks = "io/smtt/marker/Scopes";
    String begin = "begin";
    /** Internal name of the class of the callbacks at the exit. */
    String endCallbacks = "io/smtt/marker/Scopes";
    String end = "end";
    String wrap = "wrap";
    String abort = "abort";
    /** Arguments handed to the callback, 0 for {@code this}. */
    int[] arguments = {};
    /** The argument that ARGUMENT and PULL replace. */
    int replaced = 1;
    /** Activity, access and region while the method runs. */
    long tag;
    /** What the thread does that runs the method to help a task: a code of the contract, or 0. */
    int helper;
    /** Name of the span, or null where none is reported. */
    String span;
    /** The call that CALL replaces: owner, name, descriptor. */
    String callOwner;
    String callName;
    String callDescriptor;

    Hook(Kind kind, String className, String method, String descriptor) {
        this.kind = kind;
        this.className = className;
        this.method = method;
        this.descriptor = descriptor;
        group = className.substring(className.lastIndexOf('/') + 1) + "." + method;
    }

    Hook to(String callbackClass, String begin, int... arguments) {
        this.callbacks = "io/smtt/marker/" + callbackClass;
        this.begin = begin;
        this.arguments = arguments;
        return this;
    }

    Hook ends(String callbackClass, String end) {
        endCallbacks = "io/smtt/marker/" + callbackClass;
        this.end = end;
        return this;
    }

    Hook tag(int activity, int access, int region) {
        tag = Words.tag(activity, access, region);
        return this;
    }

    Hook span(String name) {
        span = name;
        return this;
    }

    /** A thread that runs this method, and sets a task's context in it, helps that task until the method's end. */
    Hook helps(int code) {
        helper = code;
        return to("Helpers", "begin").ends("Helpers", "end");
    }

    Hook replaces(int argument) {
        replaced = argument;
        return this;
    }

    Hook call(String owner, String name, String descriptor) {
        callOwner = owner;
        callName = name;
        callDescriptor = descriptor;
        group += "/" + name;
        return this;
    }

    boolean matches(String name, String desc) {
        if (!method.equals("*") && !method.equals(name)) {
            return false;
        }
        if (descriptor.equals("*")) {
            return true;
        }
        if (descriptor.endsWith("*")) {
            return desc.startsWith(descriptor.substring(0, descriptor.length() - 1));
        }
        if (descriptor.startsWith("*")) {
            return desc.endsWith(descriptor.substring(1));
        }
        return descriptor.equals(desc);
    }
}
