"""Where tasks run. An executor is a context manager that gives `run(tasks) -> outcomes`, in any order, exactly one a task."""
