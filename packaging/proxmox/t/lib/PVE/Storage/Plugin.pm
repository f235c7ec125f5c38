# A stub of PVE::Storage::Plugin: registration, the check of a storage's configuration, and what the
# plugin inherits or calls.
#
# Owns what the real base class demands of a plugin before it is loaded, so that a plugin that it
# would not take fails here. What a plugin must not inherit dies. Written from the interface;
# nothing of it is Proxmox's.
package PVE::Storage::Plugin;

use strict;
use warnings;

# Properties that the base class and other plugins own; a second owner is an error.
my %OWNED = map { $_ => 1 } qw(
    type storage nodes content disable prune-backups max-protected-backups shared subdir format
    preallocation content-dirs options port snapshot-as-volume-chain path mkdir create-base-path
    create-subdirs is_mountpoint bwlimit vgname base saferemove tagged_only pool monhost username
    server export datastore portal target
);
my %SCHEMA = map { $_ => 1 } qw(
    description type format enum default minimum maximum optional pattern
);
my (%plugins, %properties);

# As the base class registers a plugin, and as its first use checks them all.
sub register {
    my ($class) = @_;
    my $type = $class->type();
    die "duplicate registration of '$type'\n" if $plugins{$type};
    my $data = $class->plugindata();
    for my $pair (qw(content format)) {
        my ($known, $default) = @{ $data->{$pair} };
        my @default = ref($default) ? keys %$default : ($default);
        die "$pair: default '$_' is not known\n" for grep { !$known->{$_} } @default;
    }
    my $own = $class->properties();
    for my $name (keys %$own) {
        die "duplicate property '$name'\n" if $OWNED{$name};
        my @words = grep { !$SCHEMA{$_} } keys %{ $own->{$name} };
        die "property '$name': unknown @words\n" if @words;
        die "property '$name' has no type\n" if !$own->{$name}->{type};
    }
    my $options = $class->options();
    for my $name (keys %$options) {
        die "option '$name' is no property\n" if !$OWNED{$name} && !$own->{$name};
        my @words = grep { !/\A(?:fixed|optional|advanced)\z/ } keys %{ $options->{$name} };
        die "option '$name': unknown @words\n" if @words;
    }
    $properties{$type} = $own;
    $plugins{$type} = $class;
}

sub lookup {
    my ($class, $type) = @_;
    return $plugins{$type} // die "unknown storage type '$type'\n";
}

# What `pvesm add TYPE` takes.
sub check_config {
    my ($class, $type, $config) = @_;
    my $plugin = $class->lookup($type);
    my $options = $plugin->options();
    for my $name (sort keys %$config) {
        die "unexpected property '$name'\n" if !$options->{$name};
        my $schema = $properties{$type}->{$name} // next;
        my $value = $config->{$name};
        die "$name: '$value' is not one of @{ $schema->{enum} }\n"
            if $schema->{enum} && !grep { $_ eq $value } @{ $schema->{enum} };
        if ($schema->{type} eq 'integer') {
            die "$name: '$value' is no number\n" if $value !~ /\A-?[0-9]+\z/;
            die "$name: '$value' is too small\n" if $value < ($schema->{minimum} // $value);
            die "$name: '$value' is too large\n" if $value > ($schema->{maximum} // $value);
        }
        die "$name: '$value' is no absolute path\n"
            if ($schema->{format} // '') eq 'pve-storage-path' && $value !~ m{\A/[^;()]+};
    }
    for my $name (sort keys %$options) {
        die "missing value for '$name'\n"
            if !$options->{$name}->{optional} && !defined($config->{$name});
    }
    return { type => $type, content => $plugin->plugindata()->{content}->[1], %$config };
}

# The first disk that no name of the list has. A number may stand behind the storage's own prefix.
sub get_next_vm_diskname {
    my ($disk_list, $storeid, $vmid, $fmt, $scfg, $add_fmt_suffix) = @_;
    die "arguments of get_next_vm_diskname are in another order\n"
        if ref($disk_list) ne 'ARRAY' || ref($scfg) ne 'HASH' || ref($storeid);
    my $suffix = $add_fmt_suffix ? ".$fmt" : '';
    my $disk = qr/(?:vm|base)-\Q$vmid\E-disk-([0-9]+)\Q$suffix\E/;
    my %taken = map { $_ =~ $disk ? ($1 => 1) : () } @$disk_list;
    my ($free) = grep { !$taken{$_} } 0 .. 1023;
    die "no name is free\n" if !defined($free);
    return "vm-$vmid-disk-$free$suffix";
}

sub get_formats {
    my ($class, $scfg, $storeid) = @_;
    my ($valid, $default) = @{ $class->plugindata()->{format} };
    return { default => $default, valid => $valid };
}

sub cluster_lock_storage {
    my ($class, $storeid, $shared, $timeout, $function, @param) = @_;
    return $function->(@param);
}

sub map_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $hints) = @_;
    my ($path) = $class->path($scfg, $volname, $storeid, $snapname);
    return $path;
}

# Inherited, these would work on a file system's directory or on an image past its volume.
for my $name (
    qw(
    parse_volname filesystem_path path create_base clone_image alloc_image free_image
    list_images status activate_storage activate_volume deactivate_volume volume_size_info
    volume_resize volume_snapshot volume_rollback_is_possible volume_snapshot_rollback
    volume_snapshot_delete volume_snapshot_info volume_has_feature volume_export volume_import
    volume_export_formats volume_import_formats rename_volume rename_snapshot
    qemu_blockdev_options check_connection find_free_diskname volume_qemu_snapshot_method api
    )
) {
    no strict 'refs';
    *$name = sub { die "$name is inherited from the base class\n" };
}

1;
