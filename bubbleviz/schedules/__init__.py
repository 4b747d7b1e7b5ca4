"""Pipeline schedules: orders of operations from papers, searches and files, timed by simulation.

The package builds plans and computes how long each plan takes with given operation times. The
package may import ``model``. It does not depend on the measurements that are used to check
predictions.
"""
