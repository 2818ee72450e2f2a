"""Where `fleet.system.spark_daemon` stood: servers that an older release started name it so."""

from fleet.system.spark_daemon import main

if __name__ == "__main__":
    main()
