/*
 * The variable of a thread's context in the form of OTEP 4947. In a library of its own, and in C: stable Rust cannot
 * export a variable of a thread, and the marker's own library stays free of it where nothing is published.
 */

/* Points to the record of what the thread does, or is null. Readers look it up by this name. */
__attribute__((visibility("default"))) __thread void *otel_thread_ctx_v1;

/* Native method: address of the calling thread's variable. */
__attribute__((visibility("default"))) long long Java_io_smtt_marker_Published_place(void *env, void *type)
{
    (void)env;
    (void)type;
    return (long long)&otel_thread_ctx_v1;
}
