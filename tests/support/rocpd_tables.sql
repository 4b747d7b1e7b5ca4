-- Tables of rocprofv3's rocpd files (schema 3) that contain rows in profiles of pipelines. "{{guid}}"
-- is the GUID of the process. "{{suffix}}" is the GUID with underscores, which ends table names.

CREATE TABLE "rocpd_metadata{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "tag" TEXT NOT NULL, "value" TEXT NOT NULL
);
CREATE TABLE "rocpd_string{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "string" TEXT NOT NULL
);
CREATE TABLE "rocpd_info_node{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "hash" BIGINT NOT NULL, "machine_id" TEXT NOT NULL,
    "system_name" TEXT, "hostname" TEXT, "release" TEXT, "version" TEXT, "hardware_name" TEXT,
    "domain_name" TEXT
);
CREATE TABLE "rocpd_info_process{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "ppid" INTEGER,
    "pid" INTEGER NOT NULL, "init" BIGINT, "fini" BIGINT, "start" BIGINT, "end" BIGINT,
    "command" TEXT, "environment" JSONB DEFAULT '{}' NOT NULL, "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_info_thread{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "ppid" INTEGER,
    "pid" INTEGER NOT NULL, "tid" INTEGER NOT NULL, "name" TEXT, "start" BIGINT, "end" BIGINT,
    "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_info_agent{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "type" TEXT, "absolute_index" INTEGER, "logical_index" INTEGER, "type_index" INTEGER,
    "uuid" INTEGER, "name" TEXT, "model_name" TEXT, "vendor_name" TEXT, "product_name" TEXT,
    "user_name" TEXT, "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_info_stream{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "name" TEXT, "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_info_kernel_symbol{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "code_object_id" INTEGER NOT NULL, "kernel_name" TEXT, "display_name" TEXT,
    "kernel_object" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_event{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "category_id" INTEGER, "stack_id" INTEGER,
    "parent_stack_id" INTEGER, "correlation_id" INTEGER, "call_stack" JSONB DEFAULT '{}' NOT NULL,
    "line_info" JSONB DEFAULT '{}' NOT NULL, "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_region{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "tid" INTEGER NOT NULL, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL,
    "name_id" INTEGER NOT NULL, "event_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_kernel_dispatch{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "tid" INTEGER, "agent_id" INTEGER NOT NULL, "kernel_id" INTEGER NOT NULL,
    "dispatch_id" INTEGER NOT NULL, "queue_id" INTEGER NOT NULL, "stream_id" INTEGER NOT NULL,
    "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "region_name_id" INTEGER, "event_id" INTEGER,
    "extdata" JSONB DEFAULT '{}' NOT NULL
);
CREATE TABLE "rocpd_memory_copy{{suffix}}" (
    "id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT '{{guid}}' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "tid" INTEGER, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "name_id" INTEGER NOT NULL,
    "dst_agent_id" INTEGER, "dst_address" INTEGER, "src_agent_id" INTEGER, "src_address" INTEGER,
    "size" INTEGER NOT NULL, "queue_id" INTEGER, "stream_id" INTEGER, "region_name_id" INTEGER,
    "event_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL
);
