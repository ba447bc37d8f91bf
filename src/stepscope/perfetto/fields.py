"""Numbers of the fields of Perfetto's messages that stepscope writes and reads.

Layout: `protos/perfetto/trace` of https://github.com/google/perfetto.
"""

# Trace, TracePacket
PACKET = 1
TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, DESCRIPTOR = 8, 10, 11, 12, 13, 60
CLOCK_SNAPSHOT = 6
STATE_CLEARED, NEEDS_STATE = 1, 2
# TrackEvent
ANNOTATIONS, TYPE, NAME_IID, TRACK, DOUBLE_VALUE, FLOWS = 4, 9, 10, 11, 44, 47
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
# DebugAnnotation
ANNOTATION_NAME, INT_VALUE, STRING_VALUE, STRING_IID = 1, 4, 6, 17
# InternedData
EVENT_NAMES, ANNOTATION_NAMES, ANNOTATION_STRINGS = 2, 3, 29
# TrackDescriptor
UUID, NAME, PROCESS, PARENT, COUNTER_TRACK = 1, 2, 3, 5, 8
CHILD_ORDERING, SIBLING_RANK, EXPLICIT = 11, 12, 3
# ProcessDescriptor
PID, SORT_INDEX, PROCESS_NAME, LABELS = 1, 3, 6, 8
# CounterDescriptor
UNIT_NAME = 6
BOOT_TIME, REAL_TIME = 6, 1
