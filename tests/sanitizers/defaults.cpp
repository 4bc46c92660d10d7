// Sanitizer options compiled into every sanitized program, so that it behaves the same under ctest, mpirun or by hand.
// *SAN_OPTIONS in the environment override them. Suppressions, each with its reason, cover third-party code only; there
// is none for our own.
extern "C" {

#ifdef __SANITIZE_ADDRESS__
// Open MPI unloads its plugins before the leak check, whose suppressions would then find no names in their frames.
int dlclose(void*);
int dlclose(void*) { return 0; }
#endif

// A finding ends the program with a stack trace; heap errors are reported by the sanitizer, not by our signal handler.
const char* __asan_default_options();
const char* __asan_default_options() {
  return "strict_string_checks=1:check_initialization_order=1:strict_init_order=1:"
         "allow_user_segv_handler=1:allocator_may_return_null=1:exitcode=99";
}
const char* __ubsan_default_options();
const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }
const char* __lsan_default_options();
const char* __lsan_default_options() { return "print_suppressions=0"; }
const char* __tsan_default_options();
const char* __tsan_default_options() {
  // die_after_fork: some checks start programs from multithreaded processes. report_thread_leaks: the monitor ends a
  // hanging run whatever its other threads do.
  return "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:report_thread_leaks=0:allocator_may_return_null=1:"
         "exitcode=99:print_suppressions=0";
}

const char* __lsan_default_suppressions();
const char* __lsan_default_suppressions() {
  return
      // Open MPI keeps memory of MPI_Init until exit.
      "leak:libmpi.so\n"
      "leak:libopen-pal.so\n"
      "leak:libopen-rte.so\n"
      "leak:libpmix.so\n"
      "leak:libevent\n"
      "leak:libhwloc.so\n"
      "leak:mca_\n"
      // Its formatted strings: the unwinder stops in the C library before the caller. Our own strings are allocated
      // elsewhere.
      "leak:vasprintf\n";
}

const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return
      // The sanitizer cannot see libgomp's futexes; oneDNN calls it with one thread.
      "race:libgomp.so\n"
      "called_from_lib:libgomp.so\n"
      // The first thread creates oneDNN's caches behind a guard whose fast path has no interceptable call.
      "race:libdnnl.so\n"
      // Ranks share oneDNN's primitive cache, filled by the first one under its own lock; the header, compiled here,
      // copies a description out of it.
      "race:dnnl::primitive_desc_base::query_md\n"
      // Open MPI takes the locks of a connection in both orders, from one thread, and its components signal by polling.
      "deadlock:mca_btl_tcp.so\n"
      "race:mca_\n"
      "race:libopen-pal.so\n"
      "race:libpmix.so\n"
      "race:libevent\n";
}
}
