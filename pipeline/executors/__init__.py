"""Where tasks run: a context manager that gives `run(job, tasks) -> outcomes`, in any order, exactly one a task."""
